qemu qemu 1 '' -M pc -m 768
says 'workload running'
attach_both qemu
both 100
tell next
until [ "$(grep -c '^workload running' "$console")" -ge 2 ]; do
    is_over && fail 93 "over before the next kernel has started"
    alive "$(wc -c <"$console") bytes on the console after kexec"
    usleep 50000
done
for way in traced copied; do
    socket=/run/$way.attached
    until status next && grep -q "\"release\":\"$(sed -n 's/^running //p' "$console" | tr -d '\r' | tail -n 1)\"" /run/next &&
        grep -q '"slide":[0-9]' /run/next; do
        alive "the next kernel isn't known yet to $way"
        usleep 100000
    done
done
both 200
detach_both
tell over
ended
