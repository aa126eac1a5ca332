# A return probe and the function graph tracer replace return addresses of the system call that dd makes.
mount -t tracefs none /sys/kernel/tracing 2>/dev/null || {
    mkdir -p /tracing
    mount -t tracefs none /tracing
}
for tracing in /sys/kernel/tracing /tracing; do
    [ -e $tracing/kprobe_events ] || continue
    echo 'r:back vfs_read' >$tracing/kprobe_events
    echo 1 >$tracing/events/kprobes/back/enable
    echo ksys_read >$tracing/set_ftrace_filter
    echo function_graph >$tracing/current_tracer
    # It replaces one of the program's, too.
    echo "r:user $probe" >$tracing/uprobe_events
    echo 1 >$tracing/events/uprobes/user/enable
    break
done
probed &
dd if=/dev/zero of=/dev/null bs=64k 2>/dev/null &
