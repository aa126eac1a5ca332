//! The sampling programs in the host's kernel, on Debian's kernels for hosts.

use kvmprof_attach::sampling::testing::load_programs;
use kvmprof_tests::on_kvm_of_lab_with;

#[test]
fn debian_6_1_accepts_the_programs() {
    on_kvm_of_lab_with("6.1", || println!("{} programs", load_programs().unwrap()));
}

#[test]
fn debian_6_12_accepts_the_programs() {
    on_kvm_of_lab_with("6.12", || println!("{} programs", load_programs().unwrap()));
}
