--[[ plain_queue: checks whether a queue has only plain jobs of the default priority: no jobs in the other lists, no
open lane, no cap. One command checks all of this, and most queues have none of it. A key that does not exist has no
type, so the command checks the types as well.

Keys: ready open caps
Meta: caps_by_task caps_by_key
Uses: meta(facts)
]]

local USUAL = PRIORITY_RANK[DEFAULT_PRIORITY]

local known   -- the answer; nil: not read yet

local function reset()
  known = nil
end

--- Return whether the queue is plain. Redis is not asked if the facts of the queue say that it has caps.
local function is_plain_queue()
  if known == nil then
    known = not facts.caps_by_task and not facts.caps_by_key and
      redis.call('EXISTS', open, caps, ready[(USUAL + 1) % 4], ready[(USUAL + 2) % 4], ready[(USUAL + 3) % 4]) == 0
  end
  return known
end
