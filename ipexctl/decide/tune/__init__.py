"""Which launches ``tune`` tries, what their rates are, and which of them it recommends."""
