usleep 500000
echo "hooks: $(cat $tracing/kprobe_events); $(cat $tracing/current_tracer) of $(cat $tracing/set_ftrace_filter)"
echo "traced: $(head -n 100 $tracing/trace | grep -c 'ksys_read()')"
while read -r file event hits; do
    [ "$file" = /bin/probed ] && echo "hits: $hits"
done <$tracing/uprobe_profile
echo workload running
# Until the host has its samples.
read -r word
echo "hooks at the end: $(cat $tracing/current_tracer)"
poweroff -f
