# A kernel that reads zeroes all day, and where some of its functions are by its own word.
for function in _stext schedule do_idle vfs_read read_iter_zero iov_iter_zero asm_exc_page_fault; do
    sed -n "s/^\([0-9a-f]*\) [tT] $function\$/symbol $function \1/p" /proc/kallsyms | head -n 1
done
insmod /modules/*brd.ko
sed -n 's/^\([0-9a-f]*\) t \(brd_[a-z_]*\)\t\[brd\]$/symbol \2\t[brd] \1/p' /proc/kallsyms
dd if=/dev/zero of=/dev/null bs=64k 2>/dev/null &
echo ready
read -r word
poweroff -f
