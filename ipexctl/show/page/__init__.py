"""Pages of runs, of comparisons and of clusters: one HTML file each, without any other file and without a network."""
