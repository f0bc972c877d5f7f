"""The only floor that prints or saves what people read."""
