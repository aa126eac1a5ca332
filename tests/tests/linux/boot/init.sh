dmesg -s 4000000 | grep 'initcall .* returned'
echo workload running
