"""First contacts: what each version said of a source before anyone had looked at it, stored once and for good."""
