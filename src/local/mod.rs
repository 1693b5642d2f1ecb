//! Servers inside this process: the built-in periodic table, and HTTP APIs that are described by a document.

pub mod elements;
pub mod rest;
