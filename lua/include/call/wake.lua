--[[ wake: the one place that pushes the token which wakes an idle worker.

The list holds a token for one idle worker. A worker that leaves work behind pushes another, so one is always enough.
Whether a worker has something to do is decided by the code that makes a job claimable, or due earlier than any other: it
calls `wake_needed`. Only a claim takes that back (`wake_not_needed`), to decide at its end. The end of the call pushes the
token.

Keys: wake
]]

local is_needed      -- whether an idle worker has something to do
local is_empty       -- whether the list had no token; nil: not read yet

local function reset()
  is_needed, is_empty = false, nil
end

--- Read the list, which must happen before the first write.
local function read_wake()
  if is_empty == nil then
    is_empty = redis.call('LLEN', wake) == 0
  end
end

--- An idle worker has something to do.
local function wake_needed()
  is_needed = true
  read_wake()
end

--- This call does itself what a worker was needed for so far.
local function wake_not_needed()
  is_needed = false
end

local function push_token()
  if is_needed and is_empty then
    redis.call('RPUSH', wake, '1')
  end
end
