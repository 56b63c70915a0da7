"""Facts to choices: everything here is a pure function of values."""
