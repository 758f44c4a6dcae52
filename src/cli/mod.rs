//! What people type, and what it prints.

pub mod audit;
