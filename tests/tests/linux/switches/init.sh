ping pass
storm storm &
echo workload running
while :; do sleep 100000; done
