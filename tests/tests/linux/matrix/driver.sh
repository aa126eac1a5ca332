# One guest from its first instruction to its end. The rates are low: in the lab a kick costs
# milliseconds, on a busy host many of them.
start guest --kernel /lab/vmlinuz --initrd /lab/guest.cpio --memory 256M --cpus "$cpus" --wait \
    --cmdline "console=ttyS0 $quick $cmdline" $options
gather boot --all --hz 40
says ready
stop_gathering

gather work --all --hz 80
tell work
says 'idle is'
sampled 400
until status working; do usleep 50000; done
cp /run/working "$stream.working"
tell enough
says 'work done'
stop_gathering

case "$options" in
*kernel*)
    tell stacks
    says 'stacks begin'
    record stacks.kvmprof
    sampled 800
    stop_recording
    tell enough
    says 'stacks end'
    ;;
esac

tell group
says 'group is'
gather group --group "$(sed -n 's/^group is \([0-9]*\).*/\1/p' $console)" --hz 80
sampled 150
# A slow machine has gathered samples of one or two by now.
until [ "$(grep -c '^one of the group has gone' $console)" -ge 4 ]; do
    alive "$(wc -c <"$console") bytes on the console"
    usleep 50000
done
tell go
says 'group done'
stop_gathering

gather end --all --hz 40
tell off
gathered
ended
