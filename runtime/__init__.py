"""How processes live and talk: simulation, nodes, the fleet, forks, supervision, keys, TLS, control."""
