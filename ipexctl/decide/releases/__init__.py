"""Facts × request × version table → one stack, or every reason why not."""
