--[[ ended: jobs that end: they leave Redis, or they are dead. No other file adds to the lists of either, so what has to happen
whenever a job ends stands here, and no way of ending can forget it.

The fact `ties` says that the queue has had jobs with more to end than themselves. Other queues do not look for it. The lists are
`seldom` ones: `gone` and `died`; `untied`, members of `expiring` that end with their jobs; `named` and `named_ids`, fields of `slots`
for the names of jobs that end, and the ids of these; and `freed`, those of these fields whose names the jobs hold.

Keys: state jobs expiring slots results
Meta: ties remembers audit
Later: dead_retention_ms backlog_bytes backlog_max_bytes
Unread: expiring
Uses: call(now_text seldom seldom_list) meta(facts fact read_now) batch(call_many read_many) names(name_field)
    remembered(memory told_in) telling(tell_ended)
]]

local FULL = 43   -- `+`, before the digest of a value that is to stand in the log

--- What ends with a job. `job` is its record, or its line.
local function untie(id, job)
  local has_deadline, name
  if type(job) == 'string' then
    has_deadline, name = job:find(' expires=', 1, true), told_in(job, ' unique=')
  else
    has_deadline, name = job.expires, job.unique
  end
  if name then
    local named, ids = seldom_list('named'), seldom_list('named_ids')
    named[#named + 1], ids[#ids + 1] = name_field(name), id
  end
  if has_deadline then
    local untied = seldom_list('untied')
    untied[#untied + 1] = 'job|' .. id
  end
end

--- A job is claimed for the first time. It gives up a name that stands until then.
local function give_up_name(id, job)
  if job.stands and job.stands:sub(1, 6) == 'claim:' then
    local named, ids = seldom_list('named'), seldom_list('named_ids')
    named[#named + 1], ids[#ids + 1] = name_field(job.unique), id
  end
end

--- The reply to a call that may end jobs whose ids are remembered, and lacks the keys for that; else nil. It comes before the call
--- decides anything.
local function refuse_keys()
  return facts.remembers and not results and {'with'} or nil
end

--- A job leaves Redis. `job` is its record; `outcome` says how it ended, `fence` under which claim. If its id is remembered, that is kept; a job
--- that was never claimed has done nothing, and one without an outcome is told of elsewhere.
local function leaves(id, job, outcome, fence)
  local gone = seldom_list('gone')
  gone[#gone + 1] = id
  if facts.ties then
    untie(id, job)
    local once = job.claim and job.once
    if outcome and (once or job.keep) then
      local more = job.keep and ' task=' .. job.task .. (job.reason and ' reason=' .. job.reason or '')
      memory.keep(id, outcome, outcome == 'dead' and job.since or now_text, fence, once, job.call, job.keep, more)
    end
  end
end

--- Jobs succeed, and leave Redis. `lines` are theirs, in order; false for a job that is not among them. `given` has by the same place
--- what its handler returned, if that is kept: JSON, or `!` and why there is none. `notes` has `=` or `+`, and the digest of that JSON, which
--- the job's event tells; with `+` it tells the JSON as well, unless the log is at its bound. `events` are those of `ids`.
local function all_leave(ids, lines, events, given, notes)
  local at = 0
  for i = 1, #lines do
    local line = lines[i]
    if line then
      at = at + 1
      untie(ids[at], line)
      local once, keep
      if facts.remembers then
        once, keep = told_in(line, ' once='), told_in(line, ' keep=')
      end
      if once or keep then
        local value, note, more = given[i], notes[i], keep and ' task=' .. told_in(line, ' task=')
        if keep and not value then
          more = more .. ' value=not_kept'
        elseif keep and value:sub(1, 1) == '!' then
          value, more = nil, more .. ' value=' .. value:sub(2)
        elseif keep and note and note ~= '' then
          local said = events[at]:sub(1, -2) .. ',"' .. note:sub(2) .. '"'
          if note:byte() == FULL and facts.audit == 'on' and fact('backlog_bytes') < fact('backlog_max_bytes') then
            said, more = said .. ',' .. cjson.encode(value), more .. ' audit=full'
          end
          events[at] = said .. ']'
        end
        memory.keep(ids[at], 'succeeded', now_text, told_in(line, ' fence='), once, once and told_in(line, ' call='), keep, more, value)
      end
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

--- Remove jobs, which have ended.
local function remove_jobs(ids)
  call_many('HDEL', state, ids)
  call_many('HDEL', jobs, ids)
  tell_ended(ids)
end

--- Before the first write: check the type of a key that only `write_ended` writes, and read who holds the names of the jobs that
--- end. A name may be another job's by now. Nothing has to be done if nothing is `seldom`.
local function check_ended()
  if seldom.untied then
    check_keys()
  end
  memory.make_room()
  local named = seldom.named
  if named then
    local ids, held_by, freed = seldom.named_ids, read_many(slots, named), seldom_list('freed')
    for i = 1, #named do
      if held_by[i] == ids[i] then
        freed[#freed + 1] = named[i]
      end
    end
  end
end

--- Remove the jobs that leave. The file `dead` indexes those that die.
local function write_ended()
  remove_jobs(seldom.gone)
  call_many('ZREM', expiring, seldom.untied)
  call_many('HDEL', slots, seldom.freed)
  memory.write()
  tell_ended(seldom.died)
end
