"""Programs that write the generated pages. A package, so that tests can import them."""
