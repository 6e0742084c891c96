--[[ ends: where jobs go whose claim ends without success. What is decided is collected here, so that everything is
checked and decided before the first write.

Keys: jobs state ready scheduled leases dead wake
Uses: state ready lanes due dead wake batch room
]]

local ended, gone, buried, lines, due = {}, {}, {}, {}, {}
local returning = {[0] = {}, {}, {}, {}}
local claimable, earlier = false, false
local next_due, sleeping

local function prepare_ends()
  -- Only so that a key of another type is an error here, before the first write, and not after it.
  redis.call('HLEN', jobs)
  redis.call('ZCARD', dead)
  lengths()
  next_due = earliest_due(0)
  sleeping = wake_is_empty()
end

--- The claim of a job is over, whatever becomes of the job. Its places in scopes are free once everything is put back.
local function end_claim(id, job)
  ended[#ended + 1] = id
  release(job.lane, id)
  drop_claim(job)
end

local function forget(id)
  gone[#gone + 1] = id
end

local function write_later(id, job, name, at)
  job.state, job.since = name, at
  lines[#lines + 1], lines[#lines + 2] = id, write_line(job)
end

--- Back to its place in line.
local function make_ready(id, job, at)
  if job.lane then
    put(lane_of(job.lane), count(job, 'seq'), id)
  else
    local list = returning[rank(job)]
    list[#list + 1] = {id, count(job, 'seq')}
    claimable = true
  end
  write_later(id, job, 'ready', at)
end

local function make_scheduled(id, job, at, due_at)
  job.due = due_at
  due[#due + 1], due[#due + 2] = due_at, 'job|' .. id
  earlier = earlier or not next_due or due_at < next_due
  write_later(id, job, 'scheduled', at)
end

local function make_dead(id, job, at, why)
  job.reason = why
  foresee('dead_retention_ms')
  buried[#buried + 1] = id
  write_later(id, job, 'dead', at)
end

--- Free the places and look at what may be served now: the last thing to decide.
local function settle_lanes()
  free_places()
  claimable = frees_queue(#ended) or opened or claimable
  check_lanes()
end

local function write_ends(at)
  call_many('HDEL', state, gone)
  call_many('HDEL', jobs, gone)
  call_many('HSET', state, lines)
  call_many('ZREM', leases, ended)
  call_many('ZADD', scheduled, due)
  for priority = 0, 3 do
    return_ready(priority, returning[priority])
  end
  write_lanes()
  bury(buried, at)
  if sleeping and (claimable or earlier) then
    push_token()
  end
end
