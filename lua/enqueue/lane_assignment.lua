--[[ lane_assignment: finds the lane of a job whose producer names no lane, and checks whether a full scope keeps a job
out.

Keys: caps waiting
Uses: scopes(scope_of held_in) lane_states(lane_of)
]]

local capped_tasks   -- the task's scope → whether the task has a cap, for scopes that were read; nil: none was read

local function reset()
  capped_tasks = nil
end

--- Return the lane of a job whose producer knew no cap of its task, if the task has a cap now; else empty text.
local function lane_for(kind)
  local task = kind.task
  capped_tasks = capped_tasks or {}
  if capped_tasks[task] == nil then
    capped_tasks[task] = redis.call('HEXISTS', caps, task) == 1
  end
  return capped_tasks[task] and kind.priority .. '+' .. task or ''
end

--- Return the number of jobs that wait in a lane, including those of this call.
local function waiting_in_lane(lane)
  if not lane.waits then
    lane.waits = redis.call('ZLEXCOUNT', waiting, '[' .. lane.name .. '|', '(' .. lane.name .. '}')
  end
  return lane.waits + (lane.added and #lane.added or 0)
end

--- Return the rule that keeps a job out: its kind, the scope or the lane that is full, and its cap; nil if no rule
--- does.
local function kept_out(name, rules)
  local lane = lane_of(name)
  -- `%f` matches only at the beginning of a word. Without it Lua would look for a rule from every letter of a long
  -- word.
  for kind, value, declared in rules:gmatch('%f[%l](%l+)|([^|%s]+)|?(%d*)') do
    local queued = waiting_in_lane(lane)
    if kind == 'most' then
      if queued >= tonumber(value) then
        return 'reject', name
      end
    else
      local scope = scope_of(value)
      local cap = scope.cap or not scope.limit.is_set and tonumber(declared)
      if cap and held_in(scope) + queued >= cap then
        return kind, value, cap
      end
    end
  end
  return nil
end
