--[[ heap: the smallest first, for what a call has to look at in order. ]]

--- Add `value` under `order`.
local function heap_push(heap, order, value)
  local at = #heap + 1
  local entry = {order = order, value = value}
  while at > 1 do
    local parent = math.floor(at / 2)
    if heap[parent].order <= order then
      break
    end
    heap[at] = heap[parent]
    at = parent
  end
  heap[at] = entry
end

--- Remove and return the entry with the smallest order.
local function heap_pop(heap)
  local first, last = heap[1], heap[#heap]
  heap[#heap] = nil
  local size, at = #heap, 1
  if size == 0 then
    return first
  end
  while at * 2 <= size do
    local child = at * 2
    if child < size and heap[child + 1].order < heap[child].order then
      child = child + 1
    end
    if last.order <= heap[child].order then
      break
    end
    heap[at] = heap[child]
    at = child
  end
  heap[at] = last
  return first
end
