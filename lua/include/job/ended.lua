--[[ ended: jobs that end: they leave Redis, or they are dead. No other file adds to the lists of either, so what has to happen
whenever a job ends stands here, and no way of ending can forget it.

The fact `ties` says that the queue has had jobs with more to end than themselves. Other queues do not look for it. The lists are
`seldom` ones: `gone` and `died`, and `untied`, members of `expiring` that end with their jobs.

Keys: state jobs expiring
Meta: ties
Later: dead_retention_ms
Unread: expiring
Uses: call(seldom seldom_list) meta(facts read_now) batch(call_many)
]]

--- What ends with a job. `job` is its record, or its line.
local function untie(id, job)
  local has_deadline
  if type(job) == 'string' then
    has_deadline = job:find(' expires=', 1, true)
  else
    has_deadline = job.expires
  end
  if has_deadline then
    local untied = seldom_list('untied')
    untied[#untied + 1] = 'job|' .. id
  end
end

--- A job leaves Redis. `job` is its record.
local function leaves(id, job)
  local gone = seldom_list('gone')
  gone[#gone + 1] = id
  if facts.ties then
    untie(id, job)
  end
end

--- Jobs leave Redis. `lines` are theirs, in order; false for a job that is not among them.
local function all_leave(ids, lines)
  local at = 0
  for i = 1, #lines do
    if lines[i] then
      at = at + 1
      untie(ids[at], lines[i])
    end
  end
end

--- A job dies, for this reason: its record says so, and the caller writes its line.
local function dies(id, job, why)
  job.state, job.reason = 'dead', why
  read_now('dead_retention_ms')
  local died = seldom_list('died')
  died[#died + 1] = id
  if facts.ties then
    untie(id, job)
  end
end

--- Remove jobs.
local function remove_jobs(ids)
  call_many('HDEL', state, ids)
  call_many('HDEL', jobs, ids)
end

--- Check the type of a key that only `write_ended` writes. Nothing has to be done if nothing is `seldom`.
local function check_ended()
  if seldom.untied then
    check_keys()
  end
end

--- Remove the jobs that leave. The file `dead` indexes those that die.
local function write_ended()
  remove_jobs(seldom.gone)
  call_many('ZREM', expiring, seldom.untied)
end
