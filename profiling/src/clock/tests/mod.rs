//! Tests of the clock's arithmetic, with artificial times.

mod accounts;
mod manual;
mod properties;
mod sequences;
mod simulation;
