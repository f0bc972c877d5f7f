"""Package indexes, wheels and wheelhouses, as seen from the controller."""
