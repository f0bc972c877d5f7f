"""A run is understood here, and nowhere else: bytes → lines and figures → events → one `RunState` → report."""
