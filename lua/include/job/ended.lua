--[[ ended: jobs that end: they leave Redis, or they are dead. No other file adds to the lists of either, so what has to happen
whenever a job ends stands here, and no way of ending can forget it.

The fact `ties` says that the queue has had jobs with more to end than themselves. Other queues do not look for it.

Keys: state jobs expiring
Meta: ties
Later: dead_retention_ms
Unread: expiring
Uses: meta(facts read_now) batch(call_many) deadline(deadline_of)
]]

local gone, gone_count = {}, 0   -- ids of jobs that leave Redis
local died                       -- ids of jobs that die; nil if none does
local untied                     -- members of `expiring` that end with their jobs; nil if there are none

local function reset()
  died, untied = nil, nil
  if gone_count > 0 then
    gone, gone_count = {}, 0
  end
end

--- What ends with a job. `job` is its record, or its line.
local function untie(id, job)
  local has_deadline
  if type(job) == 'string' then
    has_deadline = job:find(' expires=', 1, true)
  else
    has_deadline = job.expires
  end
  if has_deadline then
    if not untied then
      check_keys()
      untied = {}
    end
    untied[#untied + 1] = deadline_of(id)
  end
end

--- A job leaves Redis. `job` is its record, or its line.
local function leaves(id, job)
  gone_count = gone_count + 1
  gone[gone_count] = id
  if facts.ties then
    untie(id, job)
  end
end

--- A job dies, for this reason: its record says so, and the caller writes its line.
local function dies(id, job, why)
  job.state, job.reason = 'dead', why
  if not died then
    read_now('dead_retention_ms')
    died = {}
  end
  died[#died + 1] = id
  if facts.ties then
    untie(id, job)
  end
end

--- Remove the jobs that leave. The file `dead` indexes those that die.
local function write_ended()
  if gone_count == 1 then
    redis.call('HDEL', state, gone[1])
    redis.call('HDEL', jobs, gone[1])
  else
    call_many('HDEL', state, gone)
    call_many('HDEL', jobs, gone)
  end
  call_many('ZREM', expiring, untied)
end
