# By its path: the shell has a ping of its own.
/bin/ping pass
storm storm &
echo workload running
while :; do sleep 100000; done
