"""Cooperative games for federated learning: who is worth what to whom, and who should train together.

Pure functions over numpy arrays; randomness only from a generator that the caller passes in. One module per question:
`shapley` (contributions), `coalitions` (all averages of a few models), `relevance` (pFedSV), `sampling` (ShapleyFL),
`similarity` (pFedSim), `overlap` (overlapping coalitions), `equilibrium` (collaboration equilibrium) and `fairness` (AFL, q-FFL).
"""
