--[[ heap: keeps entries in a heap, the smallest first. An order and its value are neighbours in one table: a table
for each entry would cost more than all the rest. ]]

--- Add `value` under `order`.
local function heap_push(heap, order, value)
  local at = #heap / 2 + 1
  while at > 1 do
    local parent = math.floor(at / 2)
    if heap[2 * parent - 1] <= order then
      break
    end
    heap[2 * at - 1], heap[2 * at] = heap[2 * parent - 1], heap[2 * parent]
    at = parent
  end
  heap[2 * at - 1], heap[2 * at] = order, value
end

--- Remove the entry with the smallest order, which is the first one.
local function heap_pop(heap)
  local last = #heap
  local order, value = heap[last - 1], heap[last]
  heap[last - 1], heap[last] = nil, nil
  local size, at = last / 2 - 1, 1
  if size == 0 then
    return
  end
  while at * 2 <= size do
    local child = at * 2
    if child < size and heap[2 * child + 1] < heap[2 * child - 1] then
      child = child + 1
    end
    if order <= heap[2 * child - 1] then
      break
    end
    heap[2 * at - 1], heap[2 * at] = heap[2 * child - 1], heap[2 * child]
    at = child
  end
  heap[2 * at - 1], heap[2 * at] = order, value
end
