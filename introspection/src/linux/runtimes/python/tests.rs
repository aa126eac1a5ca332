//! Walks of interpreters of this host, and of memory made by hand.
