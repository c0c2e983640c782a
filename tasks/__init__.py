"""What is learned: data sets, partitions, models, metrics and the training loop. Knows torch, nothing of Flower."""
