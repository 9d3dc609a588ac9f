//! Checked launches: none leaves its buffers, and what is proven needs no guard.

mod attacks;
mod elements;
mod foreign;
mod fusion;
mod guard_pages;
mod images;
mod instructions;
mod kernels;
mod launches;
mod lines;
mod programs;
mod random;
mod random_kernels;
mod structs;
mod undefined;
