//! A simulated file system and clock: loses, tears and reorders unsynced writes at a crash, and fails on demand.
