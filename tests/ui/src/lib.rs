//! Nothing: trybuild has the programs depend on a library of their package.
