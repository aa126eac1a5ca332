# A kernel that reads zeroes all day, and where some of its functions are by its own word.
for function in _stext schedule do_idle vfs_read read_iter_zero iov_iter_zero asm_exc_page_fault; do
    sed -n "s/^\([0-9a-f]*\) [tT] $function\$/symbol $function \1/p" /proc/kallsyms | head -n 1
done
# A disk in memory, which a module is. What was never written takes no memory.
insmod /modules/*brd.ko rd_nr=1 rd_size=262144
sed -n 's/^\([0-9a-f]*\) t \(brd_[a-z_]*\)\t\[brd\]$/symbol \2\t[brd] \1/p' /proc/kallsyms
dd if=/dev/zero of=/dev/null bs=64k 2>/dev/null &
echo ready
read -r word

# What is read directly goes through the module each time.
kill $!
while :; do dd if=/dev/ram0 of=/dev/null bs=64k iflag=direct 2>/dev/null || break; done &
# Others come and go; one works as it comes.
while :; do
    insmod /modules/*raid6_pq.ko
    rmmod raid6_pq
    insmod /modules/*nlmon.ko
    rmmod nlmon
    usleep 200000
done &
echo modules come and go
read -r word
poweroff -f
