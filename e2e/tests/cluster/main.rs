//! Tests that need the real cluster. They run inside its namespaces (`cargo xtask test` sees to it), where pod and
//! service addresses, cgroups and the audit log are within reach.
mod platform;
