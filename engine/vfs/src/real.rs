//! The operating system's files and clock.
