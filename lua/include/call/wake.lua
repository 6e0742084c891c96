--[[ wake: pushes the token that wakes an idle worker; no other file does.

The list holds a token for one idle worker. A worker that leaves work behind pushes another one, so one token is always
enough. Code that makes a job claimable, or due earlier than any other, calls `wake_needed`. Only a claim undoes this
(`wake_not_needed`), and decides at its end. The end of the call pushes the token.

Keys: wake
]]

local is_needed      -- whether an idle worker must be woken
local is_empty       -- whether the list had no token; nil: not read yet

local function reset()
  is_needed, is_empty = false, nil
end

--- Read whether the list is empty. This must happen before the first write.
local function read_wake()
  if is_empty == nil then
    is_empty = redis.call('LLEN', wake) == 0
  end
end

--- Note that an idle worker must be woken.
local function wake_needed()
  is_needed = true
  read_wake()
end

--- Note that no idle worker must be woken, since this call itself does the work that it was needed for.
local function wake_not_needed()
  is_needed = false
end

local function push_token()
  if is_needed and is_empty then
    redis.call('RPUSH', wake, '1')
  end
end
