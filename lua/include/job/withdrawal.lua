--[[ withdrawal: jobs that wait leave their place. A plain list keeps the entry of one that was ready, as a tombstone that claim
passes over, so that it costs the same at any depth.

Keys: scheduled
Later: tombstones
Unread: scheduled
Uses: state(count) meta(fact set_fact read_now) batch(call_many) lane_names(member_of) lane_standing(lane_of stand) lane_fair(is_fair)
    lane_members(remove) lane_opening(moved_on)
]]

local marks         -- their members of `scheduled`, whether they are there or not; nil if no job leaves its place
local tombstones    -- how many of them leave an entry in a plain list

local function reset()
  marks, tombstones = nil, 0
end

--- A job leaves its place. If its lane was open, what stood behind it may be served now.
local function withdraw(id, job)
  if not marks then
    check_keys()
    marks = {}
  end
  marks[#marks + 1] = 'job|' .. id
  if job.state == 'ready' and job.lane then
    local lane = lane_of(job.lane)
    local was_open = lane.where == 'open'
    remove(lane, member_of(lane, count(job, 'seq'), id))
    if was_open then
      if lane.where == 'open' and is_fair() then
        stand(lane)
      end
      moved_on(lane)
    end
  elseif job.state == 'ready' then
    tombstones = tombstones + 1
    read_now('tombstones')
  end
end

local function write_withdrawn()
  call_many('ZREM', scheduled, marks)
  if tombstones > 0 then
    set_fact('tombstones', fact('tombstones') + tombstones)
  end
end
