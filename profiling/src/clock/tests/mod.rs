//! Tests of the clock's arithmetic, with times that are made up.

mod accounts;
mod manual;
mod properties;
mod sequences;
mod simulation;
