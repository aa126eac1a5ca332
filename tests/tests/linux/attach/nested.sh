# A guest of QEMU's that runs a guest itself, in kvmprof, while it is attached to.

# can_nest: ends the script if the guest has said why it runs no guest.
can_nest() {
    reason=$(sed -n 's/^no nested guest: //p' "$console" | tr -d '\r')
    [ -z "$reason" ] || fail 90 "the attached guest runs no guest: $reason"
}

# The clock has no common phase with the guest's own timer, which is at 250 Hz.
hz=41
qemu qemu 1 '' -M pc -m 1024
says 'workload running'
can_nest
attach_both qemu
# Meanwhile the program's unwind information is read. Later it would have to wait for that of kvmprof, whose file is large.
both 100
tell nest
says tried
can_nest
both 300
tell look
says looked
can_nest
detach_both
tell over
ended
