//! The pure placement engine.
