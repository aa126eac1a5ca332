dd if=/dev/zero of=/dev/null bs=4k 2>/dev/null &
calls &

# A disk in memory, which a module of the kernel's is; what is read directly goes through that each time. What was never
# written takes no memory.
insmod /modules/*brd.ko rd_nr=1 rd_size=262144
while :; do dd if=/dev/ram0 of=/dev/null bs=64k iflag=direct 2>/dev/null || break; done &

# Others come and go; one works as it comes.
while :; do
    insmod /modules/*raid6_pq.ko
    rmmod raid6_pq
    insmod /modules/*nlmon.ko
    rmmod nlmon
    usleep 300000
done &
sed -n 's/^\([0-9a-f]*\) t \(brd_[a-z_]*\)\t\[brd\]$/symbol \2 \1/p' /proc/kallsyms
echo workload running
while :; do sleep 100000; done
