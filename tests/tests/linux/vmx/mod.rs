//! Hosts with Intel's VT-x, emulated by Bochs. All other tests run on AMD's SVM.

mod exits;
mod hosts;
mod smoke;
