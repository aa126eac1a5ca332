#include "queue.h"
#include "memory.h"

void queue_clear(struct virtqueue *queue)
{
    memset(queue, 0, sizeof(*queue));
}

/* A descriptor without a successor. */
void queue_describe(struct virtqueue *queue, uint32_t index, uint64_t address, uint32_t length, uint32_t flags)
{
    queue->table[index] = (struct descriptor){ address, length, (uint16_t)flags, 0 };
}

/* Makes a chain available to the device, which hears of it only when it is notified. */
void queue_offer(struct virtqueue *queue, uint16_t head)
{
    uint16_t index = queue->available.index;

    queue->available.heads[index % QUEUE_SIZE] = head;
    __atomic_store_n(&queue->available.index, (uint16_t)(index + 1), __ATOMIC_SEQ_CST);
}

/* Takes a chain back that the device is done with; 0 if there is none. */
int queue_take(struct virtqueue *queue, uint32_t *head, uint32_t *length)
{
    if (__atomic_load_n(&queue->used.index, __ATOMIC_ACQUIRE) == queue->taken)
        return 0;
    *head = queue->used.elements[queue->taken % QUEUE_SIZE].head % QUEUE_SIZE;
    *length = queue->used.elements[queue->taken % QUEUE_SIZE].length;
    queue->taken++;
    return 1;
}
