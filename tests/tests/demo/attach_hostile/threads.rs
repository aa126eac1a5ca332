//! Threads of vCPUs in any state when they are stopped, and in any other one at the next sample.

use kvmprof_tests::{on_kvm, until};

use super::vmm::Vmm;
use super::{Attachment, CAPTURES, check_samples, sampled};

/// No system call is made in the program that has the thread's number then.
#[test]
fn a_vmm_whose_main_thread_is_a_vcpu_executes_another_program() {
    on_kvm(|| {
        for capture in CAPTURES {
            let mut vmm = Vmm::start();
            vmm.tell("main-thread");
            let mut attached = Attachment::start(&vmm, capture);
            attached.until_sampled(100);
            vmm.begin("exec sleep 1000");
            let (ran, samples) = attached.wait();
            assert!(ran.stderr.contains("has ended"), "{ran:?}");
            check_samples(&samples);
            assert!(vmm.is_running());
        }
    });
}

/// A signal that arrives during kvmprof's system calls in the thread waits until the thread has its own registers back: no handler ever runs with
/// others.
#[test]
fn a_signals_handler_does_not_notice_a_stop() {
    on_kvm(|| {
        for capture in CAPTURES {
            let (mut vmm, attached) = sampled(capture);
            vmm.tell("pry");
            attached.until_ticks(1000);
            let (ran, samples) = attached.stop();
            assert_eq!(ran.stderr, "");
            check_samples(&samples);
            // Each signal has arrived, and no handler has noticed a stop.
            vmm.tell("pried");
            assert!(vmm.is_running() && !vmm.is_traced());
        }
    });
}

/// KVM doesn't answer for a vCPU that another thread runs: kvmprof stops waiting for it. When KVM answers at last, the thread continues as if nothing
/// had happened.
#[test]
fn another_thread_may_run_the_vcpu() {
    on_kvm(|| {
        let (mut vmm, attached) = sampled("ptrace");
        vmm.tell("main-thread");
        // Longer than kvmprof waits.
        vmm.tell("kick-main 300");
        vmm.tell("work 5");
        let (_, samples) = attached.stop();
        check_samples(&samples);
        assert!(vmm.is_running() && !vmm.is_traced());
    });
}

/// The thread's waits end as without kvmprof, and all signals reach it.
#[test]
fn a_vcpus_thread_may_sleep_and_wait() {
    on_kvm(|| {
        for capture in CAPTURES {
            let (mut vmm, attached) = sampled(capture);
            vmm.tell("work 500");
            attached.until_sampled(50);
            let (ran, samples) = attached.stop();
            assert_eq!(ran.stderr, "");
            check_samples(&samples);
        }
    });
}

/// A vCPU's thread that stops late isn't kept, even if nothing shows any more that the guest runs.
#[test]
fn a_vcpu_may_be_slow_to_stop() {
    on_kvm(|| {
        for capture in CAPTURES {
            let (mut vmm, attached) = sampled(capture);
            let pipe = attached.folder.path().join("pipe").display().to_string();
            vmm.tell(&format!("block {pipe}"));
            // It is traced from then on until it has stopped: kvmprof has given up waiting for that.
            let mut looks = 0;
            until("kvmprof tries to stop it", || {
                looks = if vmm.is_traced() { looks + 1 } else { 0 };
                (looks >= 300).then_some(())
            });
            vmm.tell("stop-clock");
            vmm.tell(&format!("unblock {pipe}"));
            attached.until_sampled(100);
            let (_, samples) = attached.stop();
            check_samples(&samples);
            assert!(!vmm.is_traced());
        }
    });
}
