//! The client in Python.
