--[[ box_end: marks the box of a durable job that leaves Redis, so that claims empty the box (see include/boxes/box). A
dead job keeps its box: if the job is requeued, it continues after the steps that it has saved.

Fact: durable
Field: life
Keys: expiring
Unread: expiring
Lists: left_boxes
Uses: call(now_text) parts(list_of) batch(call_many)
]]

local lists = {}

local function decide(_, life, _, outcome)
  if outcome == 'dies' then
    return false
  end
  local marks = list_of(lists, 'left_boxes')
  marks[#marks + 1], marks[#marks + 2] = now_text, 'box|' .. life
  return true
end

local function check()
  check_keys()
end

local function write()
  call_many('ZADD', expiring, lists.left_boxes)
end
