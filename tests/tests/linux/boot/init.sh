dmesg -s 4000000 | grep 'initcall .* returned'
echo workload running
while :; do sleep 100000; done
