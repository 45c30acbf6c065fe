"""Several processes of one application on one machine: a parent that keeps them, and each of them."""
